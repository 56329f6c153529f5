"""/v1/responses as routes: creating a response, and everything that is done with one by its id."""
