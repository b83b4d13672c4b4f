"""Who acts: one package a service. Services never import each other; they meet on the bus."""
