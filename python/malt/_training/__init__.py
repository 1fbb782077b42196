"""The parts that estimators share: steps, a progress bar, trainings that fail as a whole."""
