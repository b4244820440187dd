"""Losses: pure functions of tensors that return a sum and a count. No model inside."""

from trimtab.losses.next_token import next_token_loss

__all__ = ["next_token_loss"]
