"""Any selector in any Flower strategy (extra ``flower``)."""
