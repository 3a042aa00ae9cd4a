"""What models reach: the examples with other heads, layers and libraries, each row in its own process.

`python -m benchmarks.quality TABLE [options of the example]` prints a table. A module of this folder is a
table: `ROWS`, the names of its rows; `run(row, argv)`, which trains one and returns a dict of its columns;
and `COURSE`, what the axes of its picture say. `run` may return "course", a list of points for the picture.
`NEEDS`, optional, names the package that a row needs, and `NOT_WITH` the option that a row does not have.
"""
