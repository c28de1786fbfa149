"""Measure the time and memory of the command `budget` for 10,000 questions with 64 answers each.

A resample needs no new sort. Its budget is spent along the ranking of all answers, which takes 640,000 additions for
each of 2,000 resamples, or 1.3 · 10⁹ for a method. The curves of spending and success at up to 104 · 5 points need
10,000 · 524 · 2 multiplications for a resample in 5 folds, or 2 · 10¹⁰ for a method.
"""
