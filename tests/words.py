"""Lists of settings and other words, written as on a command line."""


def words(text: str) -> list[str]:
    """Return the words of a text, which spaces and ends of lines part."""
    return text.split()
