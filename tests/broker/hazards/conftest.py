"""Gateways in front of the broker, for the hazard that lies between them."""

from tests.gateway.conftest import model_folder, stage, stage_of, tokenizer

__all__ = ["model_folder", "stage", "stage_of", "tokenizer"]
