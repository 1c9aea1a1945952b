"""How candidates move. A search sees scores and, if it asks, gradients; never a network, a label or a budget."""
