"""The report: one HTML file with its charts, its style and the script that explores hidden units."""
