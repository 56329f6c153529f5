"""Between token ids and text: tokenizer, chat template, incremental detokenizer, stop strings. Needs no torch.

The worker and the gateway both turn the same ids into the same text with these, so that what the worker says about
the text (where a stop string cuts it) holds at the gateway to the character.
"""
