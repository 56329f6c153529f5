"""LoRA adapters beside one base model: read, checked, and added to the layers of the tokens that ask for them."""
