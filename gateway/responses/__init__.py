"""/v1/responses as routes: to ask for a response, and everything that is done with one by its id."""
