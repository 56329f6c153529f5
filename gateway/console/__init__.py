"""/console: a page that shows the batch live, and its data feed."""
