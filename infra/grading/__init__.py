"""From a response to a reward: an answer is found in it, and graded where a grader can do no harm."""
