"""Rate limits (jobs 5): what is known of each key, and the claim that respects them."""
