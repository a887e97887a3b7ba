"""The text that the chapters try things on."""

# Jane Austen, Pride and Prejudice (1813), chapter 6; public domain. A name of several tokens comes
# twice, eleven words apart from nothing else that repeats: the second time, each of its tokens
# could be read off the first.
DEMO_TEXT = '"Miss Elizabeth Bennet."\n\n"Miss Elizabeth Bennet!" repeated Miss Bingley.'
