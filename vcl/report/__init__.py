"""Figures and pages about stored runs. Reads the store and nothing else."""
