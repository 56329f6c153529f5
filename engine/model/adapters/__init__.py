"""LoRA adapters of one base model: loaded, checked, and applied to the layers for the tokens that use them."""
