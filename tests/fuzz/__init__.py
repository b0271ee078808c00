"""Generated inputs for the whole program, and one oracle for all of them.

`make fuzz` runs them, `python -m tests.fuzz --help` lists the options. A module per kind of input has
`make(draw, folder, command) -> Case`, which writes the input below `folder`. The numbers that it draws depend on the
case's number alone, so `--kind KIND --case NUMBER` makes the same case again.
"""
