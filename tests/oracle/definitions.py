"""Patterns filled position by position from their definitions, in NumPy, without a look at the library.

T queries see S keys. Where keys exist is bool (T,); `segments` are the documents of tokens, int (T,), or None.
"""

import numpy as np


def places(num_queries, num_keys):
    """Return the positions of queries, int (T, 1), and of keys, int (1, S)."""
    return np.arange(num_queries)[:, None], np.arange(num_keys)[None, :]


def local_blocks(num_queries, num_keys, block_size, before, after, causal, key_block_size=None):
    """Return where query i may see key j, bool (T, S): blocks at most `before` back and `after` ahead."""
    i, j = places(num_queries, num_keys)
    ahead = j // (key_block_size or block_size) - i // block_size
    return (ahead >= -before) & (j <= i if causal else ahead <= after)


def window(num_queries, num_keys, size, causal):
    """Return the sliding window, bool (T, S): 0 <= i - j < size if causal, otherwise |i - j| < size."""
    i, j = places(num_queries, num_keys)
    return (j <= i) & (i - j < size) if causal else abs(i - j) < size


def strided(num_queries, num_keys, stride, part, causal):
    """Return strided attention (Child et al. 2019), bool (T, S): a window of `stride`, and keys whole strides away.

    The part is "local", "far", or "merged" for both.
    """
    i, j = places(num_queries, num_keys)
    near, far = abs(i - j) < stride, (i - j) % stride == 0
    return {"local": near, "far": far, "merged": near | far}[part] & ((j <= i) | (not causal))


def fixed(num_queries, num_keys, block_size, num_summary, group, part, causal):
    """Return fixed attention (Child et al. 2019), bool (T, S): the own block, and the summary columns of every block.

    Summaries are the last `num_summary` columns for group 0, those before them for group 1, and so on. The part is
    "local", "far", or "merged" for both.
    """
    i, j = places(num_queries, num_keys)
    near, end = i // block_size == j // block_size, block_size - group * num_summary
    far = np.isin(j % block_size, range(end - num_summary, end)) & (i >= 0)
    return {"local": near, "far": far, "merged": near | far}[part] & ((j <= i) | (not causal))


def pixels(num_pixels, width, block_shape, order, height=None):
    """Return the (row, column) of the first pixels of an image: row by row, or block by block and so inside a block.

    Blocks at the right and lower edges hold what is left. Without a height the image has as many rows of blocks as it
    needs. The order is "raster" or "blocks".
    """
    if height is None:
        height = max(-(-num_pixels // (width * block_shape[0])), 1) * block_shape[0]
    if order == "raster":
        block_shape = (height, width)  # one block is the image
    found = []
    for top in range(0, height, block_shape[0]):
        for left in range(0, width, block_shape[1]):
            for row in range(top, min(top + block_shape[0], height)):
                found += [(row, column) for column in range(left, min(left + block_shape[1], width))]
    return found[:num_pixels]


def image_blocks(num_queries, num_keys, width, block_shape, before, after, causal, order, height=None):
    """Return local attention on an image, bool (T, S): blocks at most `before` back and `after` ahead, each a pair."""
    i, j = places(num_queries, num_keys)
    found = pixels(max(num_queries, num_keys), width, block_shape, order, height)
    blocks = np.reshape(found, (-1, 2)) // block_shape
    ahead = blocks[None, :num_keys] - blocks[:num_queries, None]
    return ((ahead >= -np.array(before)) & (ahead <= np.array(after))).all(-1) & ((j <= i) | (not causal))


def bands(query_groups, key_groups, size, causal, earlier=False):
    """Return the band inside groups and how far apart its members rank.

    Query i sees the last `size` keys of its group at positions up to i and, if not causal, the `size` - 1 next ones;
    with `earlier`, as for successor values, only keys before i. The group None is that of tokens that do not exist.

    Returns:
        Pair of bool (T, S) and int (T, S): rank of key j in its group minus that of the last key up to position i, or
        with `earlier` minus that of the next key.
    """
    allowed = np.zeros((len(query_groups), len(key_groups)), bool)
    apart = np.zeros(allowed.shape, int)
    for i, group in enumerate(query_groups):
        if group is None:
            continue
        members = [j for j, other in enumerate(key_groups) if other == group]
        past = [j for j in members if j < i or (j == i and not earlier)]
        allowed[i, past[-size:]] = True
        if not causal:
            allowed[i, members[len(past) :][: size - 1]] = True
        apart[i, members] = np.arange(len(members)) - len(past) + (not earlier)
    return allowed, apart


def earlier_window(num_queries, num_keys, size):
    """Return the last `size` positions before each, bool (T, S): 0 < i - j <= size."""
    i, j = places(num_queries, num_keys)
    return (j < i) & (i - j <= size)


def followed(exists, segments):
    """Return which tokens exist and are followed by one of their document that does too, bool (T,)."""
    found = np.zeros(len(exists), bool)
    for j in range(len(exists) - 1):
        found[j] = exists[j] and exists[j + 1] and (segments is None or segments[j] == segments[j + 1])
    return found


def chosen_keys(query_clusters, members, num_keys):
    """Return the keys that each query's cluster chose, and how far apart they rank; `members` are those of clusters.

    Returns:
        Pair of bool (T, S) and int (T, S): rank of key j in the cluster minus that of the last key up to position i.
    """
    allowed = np.zeros((len(query_clusters), num_keys), bool)
    apart = np.zeros(allowed.shape, int)
    for i, cluster in enumerate(query_clusters):
        keys = members[cluster]
        allowed[i, keys] = True
        apart[i, keys] = np.arange(len(keys)) - (len([j for j in keys if j <= i]) - 1)
    return allowed, apart


def chunks(query_rounds, key_rounds, size):
    """Return how often a query sees a key in chunks of the sorted tokens (Kitaev et al. 2020), int (T, S).

    The tokens of each round, by (group, position), are cut into chunks of `size`. A query sees its chunk and the one
    before; before the first chunk of a round is the last one of the round before, and before round 0 the last round.
    The group None is that of tokens that do not exist.
    """
    seen = np.zeros((len(query_rounds[0]), len(key_rounds[0])), int)
    key_chunks = [_cut(groups, size) for groups in key_rounds]
    for number, groups in enumerate(query_rounds):
        row = [key_chunks[number - 1][-1], *key_chunks[number]]  # each chunk behind the one before it
        for place, queries in enumerate(_cut(groups, size)):
            for keys in row[place : place + 2]:
                seen[np.ix_(queries, keys)] += 1
    return seen


def _cut(groups, size):
    """Return the tokens that exist by (group, position), in chunks: one that is empty if there are none."""
    tokens = sorted((group, i) for i, group in enumerate(groups) if group is not None)
    return [[i for _, i in tokens[start : start + size]] for start in range(0, max(len(tokens), 1), size)]


def counted_blocks(length, block_size, exists, segments):
    """Return the complete blocks of a sequence: what of each counts, pairs of position and place, and its document."""
    documents = np.zeros(length, int) if segments is None else segments
    blocks = []
    for begin in range(0, length // block_size * block_size, block_size):
        document = documents[begin + block_size - 1]
        places = [(begin + s, s) for s in range(block_size)]
        blocks.append(([(j, s) for j, s in places if exists[j] and documents[j] == document], document))
    return blocks


def seen_blocks(blocks, block_size, allowed, segments):
    """Return which of `counted_blocks` queries see once they are complete, bool (T, G); `allowed` is a mask (T, S)."""
    seen = np.zeros((len(allowed), len(blocks)), bool)
    for i in range(len(allowed)):
        for g, (block, document) in enumerate(blocks):
            own = segments is None or segments[i] == document
            complete = i >= (g + 1) * block_size - 1
            seen[i, g] = complete and own and len(block) > 0 and all(allowed[i, j] for j, _ in block)
    return seen


def best_blocks(shares, blocks, block_size, num_blocks, segments):
    """Return a query's own block and the earlier of `counted_blocks` with the largest shares (T, G), bool (T, S)."""
    length = len(shares)
    allowed = np.zeros((length, length), bool)
    for i in range(length):
        own = i // block_size
        seen = [g for g in range(own) if blocks[g][0] and (segments is None or segments[i] == blocks[g][1])]
        found = [(-shares[i, g], g) for g in seen]
        for g in [own, *(g for _, g in sorted(found)[: num_blocks - 1])]:
            allowed[i, g * block_size : (g + 1) * block_size] = True
        allowed[i, i + 1 :] = False
    return allowed


def selected_blocks(query, key, block_size, num_blocks, exists, segments):
    """Return a query's own block and the earlier blocks of the largest product with their mean key, bool (T, S)."""
    blocks = counted_blocks(len(query), block_size, exists, segments)
    means = [np.mean(key[[j for j, _ in block]], axis=0) if block else 0 * key[0] for block, _ in blocks]
    shares = query @ np.reshape(means, (len(blocks), key.shape[1])).T
    return best_blocks(shares, blocks, block_size, num_blocks, segments)


def bisected(keys, indices, size):
    """Return clusters of keys (T, H) as lists of indices: halves along a direction of 16 power steps, and so on."""
    if len(indices) == size:
        return [list(indices)]
    rows = keys[indices] - keys[indices].mean(axis=0)
    direction = 1 + 0.01 * np.arange(keys.shape[1])
    for _ in range(16):
        direction = rows.T @ (rows @ direction)
        direction /= np.linalg.norm(direction) or 1
    order = np.argsort(rows @ direction, kind="stable")
    halves = indices[order[: len(order) // 2]], indices[order[len(order) // 2 :]]
    return [cluster for half in halves for cluster in bisected(keys, half, size)]


def retrieved_clusters(query, key, pattern, exists):
    """Return the keys that each query reads, bool (T, S), and the complete clusters and nodes that it does not read.

    A query reads its own run, and the clusters and runs of the largest product with their mean key.
    """
    size, segment, seen, unread = pattern.cluster_size, pattern.segment, np.zeros((len(query), len(key)), bool), []
    known, clusters = np.where(exists[:, None], key, 0), []
    for start in range(0, len(key) // segment * segment, segment):
        clusters += bisected(known, np.arange(start, start + segment), size)
    for i in range(len(query)):
        first, own = i // segment * segment, i // size * size
        complete, left = clusters[: first // size], []
        if pattern.num_nodes is not None:
            nodes = [np.concatenate(complete[start : start + 8]) for start in range(0, len(complete), 8)]
            searched = best_groups(query[i], key, nodes, exists, pattern.num_nodes)
            left = [node for node in nodes if not any(node is other for other in searched)]
            complete = [cluster for cluster in complete if any(np.isin(cluster, node).all() for node in searched)]
        groups = complete + [list(range(start, start + size)) for start in range(first, own, size)]
        best = best_groups(query[i], key, groups, exists, pattern.num_clusters)
        seen[i, [j for group in best for j in group] + list(range(own, i + 1))] = True
        unread.append(left + [cluster for cluster in complete if not any(cluster is group for group in best)])
    return seen, unread


def best_groups(query, key, groups, exists, count):
    """Return the `count` groups of positions with the largest product of a query (H,) and the mean of their keys."""
    groups = [group for group in groups if exists[group].any()]
    scores = [query @ key[[j for j in group if exists[j]]].mean(axis=0) for group in groups]
    return [groups[number] for number in sorted(range(len(groups)), key=lambda number: -scores[number])[:count]]


def convolved_keys(key, kernel, exists, segments):
    """Return keys (T, H) with silu of their causal convolution added, over keys that exist and are of their document.

    Row l of the kernel (K, H) is for the key l positions before.
    """
    total = np.zeros_like(key)
    for i in range(len(key)):
        for distance, factors in enumerate(kernel[: i + 1]):
            j = i - distance
            if exists[j] and (segments is None or segments[i] == segments[j]):
                total[i] += factors * key[j]
    return key + total / (1 + np.exp(-total))


def best_members(scores, size, exists):
    """Return, for each cluster of scores (T, K), the positions of its `size` best tokens in ascending order."""
    return [sorted(tokens[:size]) for tokens in _by_score(scores, exists)]


def strided_members(scores, size, exists):
    """Return, for each cluster, every (number of tokens // `size`)-th token by falling score, in ascending order."""
    step = max(sum(exists) // size, 1)
    return [sorted(tokens[::step][:size]) for tokens in _by_score(scores, exists)]


def bucket_members(buckets, number, size, exists):
    """Return, for each of `number` buckets, its first `size` tokens and, if it has fewer, the first of the others."""
    tokens = [i for i in range(len(buckets)) if exists[i]]
    return [sorted(sorted(tokens, key=lambda i: (buckets[i] != bucket, i))[:size]) for bucket in range(number)]


def _by_score(scores, exists):
    """Return the positions of the tokens that exist by falling score, for each cluster."""
    tokens = [i for i in range(len(scores)) if exists[i]]
    return [sorted(tokens, key=lambda i: (-scores[i, cluster], i)) for cluster in range(scores.shape[1])]


def without_self(allowed, query_positions, key_positions):
    """Return a pattern in which a token sees itself only if it may see itself and nothing else."""
    allowed = allowed.copy()
    for row, position in enumerate(query_positions):
        own = [column for column, other in enumerate(key_positions) if other == position and allowed[row, column]]
        if own and allowed[row].sum() > len(own):
            allowed[row, own] = False
    return allowed
