"""The text that the chapters try things on."""

# Jane Austen, Pride and Prejudice (1813), chapter 6; public domain. The name, of several tokens,
# comes twice: what follows each of its tokens the second time can be read off the first time.
DEMO_TEXT = '"Miss Elizabeth Bennet."\n\n"Miss Elizabeth Bennet!" repeated Miss Bingley.'
