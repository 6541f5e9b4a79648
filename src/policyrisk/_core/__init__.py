"""What every room stands on: checked arrays, random streams, text, progress, files and threads."""
