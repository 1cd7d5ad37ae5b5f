"""What the templates of our admin pages ask for by themselves."""
