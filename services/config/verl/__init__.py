"""What `trainer.trainer_config` may say: the fields of veRL, and what becomes of each."""
