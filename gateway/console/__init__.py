"""/console: a page that shows the batch live, and what it is fed from."""
