"""A model card as text: what a shipped model is, what it was trained on, what it reached."""


def summary(record: dict) -> dict:
    """The numbers of a training record that a card states: losses in nats, best score a layer."""
    kept = {k: record[k] for k in ("heldout_loss", "in_context_score", "first_copy", "second_copy")}
    best = {
        f"best_{k}": [max(row) for row in record[k]] for k in ("previous_token", "prefix_matching")
    }
    return {**kept, **best}


def counted(n: int, thing: str) -> str:
    """ "1 layer", "2 layers"."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def card_text(card: dict) -> str:
    """The card in Markdown, from the facts in NAME.json alone."""
    config, final, training = card["config"], card["final"], card["training"]
    scores = ", ".join(
        f"layer {layer}: previous token {previous:.2f}, prefix matching {prefix:.2f}"
        for layer, (previous, prefix) in enumerate(
            zip(final["best_previous_token"], final["best_prefix_matching"])
        )
    )
    mlp = f", MLPs of {config['d_mlp']} neurons, learned positions" if "d_mlp" in config else ""
    rows = {
        "what": f"{'standard' if mlp else 'attention-only'} transformer, {counted(config['n_layers'], 'layer')} of "
        f"{config['n_heads']} heads of {config['d_head']}, d_model {config['d_model']}, context "
        f"{config['n_ctx']}, vocabulary {config['d_vocab']:,}, norm {config['norm'] or 'none'}"
        f"{', smeared keys' if config.get('smear') else ''}{mlp}",
        "parameters": f"{card['parameters']:,}, stored as fp16",
        "for": "studying circuits; it is no useful language model and must not be taken for one",
        "data": f"{training['data']}, fingerprint {card['corpus_fingerprint'][:16]} (see NOTICE)",
        "tokens": f"{card['tokens']:,} ({training['steps']:,} steps of {training['batch']} "
        f"sequences), seed {training['seed']}",
        "time": f"{card['minutes']:.0f} minutes of training steps on a shared {card['device']} "
        f"({card['cpu_capability']}, {counted(card['threads'], 'thread')}), torch {card['torch']}",
        "code": f"commit {(card['commit'] or 'unknown')[:12]}",
        "held-out loss": f"{final['heldout_loss']:.3f} nats a token",
        "in-context score": f"{final['in_context_score']:.3f} nats",
        "random tokens twice": f"{final['first_copy']:.2f} nats on the first copy, "
        f"{final['second_copy']:.2f} on the second",
        "best heads": scores or "none: there are no layers",
        "sha256": f"`{card['sha256']}`",
    }
    table = "".join(f"| {key} | {value} |\n" for key, value in rows.items())
    return f"# {card['name']}\n\n| | |\n| --- | --- |\n{table}"
