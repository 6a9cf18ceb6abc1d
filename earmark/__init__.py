"""The program: the command line, and whatever shows runs to a person. It holds no logic of its own.

``main`` is the door and the table of commands; ``commands`` has one file per command; ``exits``,
``failures``, ``console``, ``output`` and ``doors`` are what all of them share.
"""
