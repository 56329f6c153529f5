"""Tool calls in the text of an answer: how to recognize them, and how to make a model write them."""
