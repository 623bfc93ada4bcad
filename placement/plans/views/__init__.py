"""The pages of plans: forms, cards, charts."""
