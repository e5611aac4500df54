"""The paper's figures, drawn from stored runs with matplotlib."""
