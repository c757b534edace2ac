"""storage.epoch: leader epochs of a log."""
