"""The one exception that means: the user's input is wrong, and this is what to do."""


class UserError(ValueError):
    """Wrong input. The message is one line: what is wrong, what to do instead."""


class DiskFullError(UserError):
    """No room on the disk. The process exits at once, as its exit handlers write."""
