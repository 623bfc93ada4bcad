"""The command line: ``python -m placement.planner estimate|plan|split``.

Each command is a `CliCommand`. The portal's ``manage.py`` offers the same commands.
"""
