"""Training steps of keras_hub's GPT-2, with dense logits and with a `FullSoftmax`."""
