"""Checks for the exercises, one module per chapter; `core` holds what they share."""
