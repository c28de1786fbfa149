"""Token signals as scores of answers, without training."""
