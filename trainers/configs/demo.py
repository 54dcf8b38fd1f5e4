from trainers.configs import base

LOCAL = {"layer": "LocalAttention", "num_heads": 2, "key_dim": 32, "window": 128, "position": "rotary"}
ROUTING = {
    "layer": "RoutingAttention",
    "num_heads": 2,
    "key_dim": 32,
    "num_clusters": 8,
    "cluster_size": 64,
    "position": "rotary",
}


def get_config(variant="mixed"):
    config = base.get_config()
    config.data.update(sequence_length=512, batch_size=8)
    parts = [LOCAL, ROUTING] if variant == "mixed" else [{**LOCAL, "num_heads": 4}]
    config.model.update(num_layers=4, hidden_dim=128, intermediate_dim=512, attention=parts, tie_embeddings=True)
    if variant == "tiny":
        config.data.update(sequence_length=64, batch_size=2)
        config.model.update(num_layers=2, hidden_dim=16, intermediate_dim=32, dropout=0.1)
        config.model.attention = [
            {"layer": "LocalAttention", "num_heads": 1, "key_dim": 8, "window": 16, "position": "rotary"},
            {"layer": "RoutingAttention", "num_heads": 1, "key_dim": 8, "num_clusters": 4, "cluster_size": 8},
        ]
        config.train.update(num_steps=20, log_every=5, evaluate_every=10, checkpoint_every=5, evaluation_windows=4)
    return config
