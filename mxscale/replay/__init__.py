"""Replays: a published figure or table from a grid of runs, drawn beside the published numbers."""
