"""A server that answers questions with confidences, for clients of the OpenAI API and for routers."""
