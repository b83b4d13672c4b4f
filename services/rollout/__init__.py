"""What explorer and evaluator share: tasksets, workflows and rewards."""
