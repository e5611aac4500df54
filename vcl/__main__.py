"""`python -m vcl` is `vcl`."""

from vcl.cli import main

main()
