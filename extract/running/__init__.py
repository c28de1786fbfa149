"""Support for running commands: command lines, exit status, progress bars, locks, and retries when memory runs out."""
