"""Pass@K, voting, abstention, comparison of models, and other applications of graded answers and confidences."""
