// Texts to begin with. `words` presets are drawn from the tokenizer when chosen.

export const PRESETS = {
  name: { title: "A name, twice", demo: true },
  random: { title: "Random pieces of words, three times", words: { count: 14, times: 3 } },
  code: {
    title: "Python code",
    text: "class Counter:\n    def __init__(self, total):\n        self.total = total\n\n    def add(self, amount):\n        self.total = self.total + amount\n        return self.",
  },
  bug: { title: "A skip-trigram bug", text: "\n    def add(", model: "attn-only-1l", target: "):" },
};
