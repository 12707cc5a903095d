"""`lab data`: what was recorded, shown, replayed, joined, filmed and handed on."""
