"""Reports as HTML, each in one file that loads no other file."""
