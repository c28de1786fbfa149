"""Learning curves: AUROC and Brier skill for different numbers of training questions and answers."""
