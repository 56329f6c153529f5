"""Between token ids and text: tokenizer, chat template, incremental detokenizer, stop strings. Needs no torch.

Worker and gateway both use this code, so the same ids give the same text, and positions that the worker reports (where
a stop string cuts the text) are valid at the gateway to the character.
"""
