"""Tool calls in the text of an answer: how they are recognised, and how a model is made to write them."""
