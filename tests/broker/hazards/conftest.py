"""Gateways in front of the broker, for the hazard that occurs between gateways."""

from tests.gateway.conftest import model_folder, stage, stage_of, tokenizer

__all__ = ["model_folder", "stage", "stage_of", "tokenizer"]
