"""Applications of graded answers and confidences, such as Pass@K, voting, abstention and the comparison of models."""
