// Texts as tokens and back, by the tokenizer that the page has.

import { Tokenizer } from "@huggingface/tokenizers";
import type { Card } from "./card";
import { sharedCharacters } from "./shared";

/** The names of tokens that end or part texts: see src/headloom/analysis/heads/patterns.py. */
const SEPARATORS = new Set([
  ..."[SEP] </s> <end> <sep> <eos> <EOS> <|endoftext|> <|end_of_text|>".split(" "),
  ..."<|im_end|> <|eot_id|> <|end|> <|return|> <end_of_turn>".split(" "),
]);

export class Tokens {
  private readonly tokenizer: Tokenizer;
  private readonly unknown: number;

  /** names: what is shown of each token; null: nothing of its own. */
  constructor(
    private readonly card: Card,
    private readonly names: readonly (string | null)[],
  ) {
    if (!card.tokenizer) throw new Error(`${card.name} reads no text.`);
    this.tokenizer = new Tokenizer(card.tokenizer, {});
    const { model } = card.tokenizer as { model?: { unk_token?: string } };
    this.unknown = this.tokenizer.token_to_id(model?.unk_token ?? "") ?? 0;
  }

  /** The ids of a text. bare: without the tokens that the tokenizer puts around it. */
  ids(text: string, bare = false): number[] {
    // Of a vocabulary of whole words the tokenizer leaves unknown ones without an id.
    const ids: (number | undefined)[] = this.tokenizer.encode(text, {
      add_special_tokens: !bare,
    }).ids;
    return ids.map((id) => id ?? this.unknown);
  }

  /** What is shown of the tokens of a text. */
  shown(ids: number[]): string[] {
    return sharedCharacters(ids.map((id) => this.name(id)));
  }

  name(id: number): string {
    return this.names[id] ?? this.tokenizer.id_to_token(id) ?? `‹${id}›`;
  }

  text(ids: number[]): string {
    const { special = [] } = this.card;
    const words = ids.filter((id) => !special.includes(id));
    return words.length ? this.tokenizer.decode(words, { skip_special_tokens: true }) : "";
  }

  /** The places of the tokens that end or part texts. */
  separators(ids: number[]): number[] {
    const places = [...ids.keys()].slice(1);
    return places.filter((n) => SEPARATORS.has(this.tokenizer.id_to_token(ids[n]) ?? ""));
  }

  /** Checks the length of a sequence. Raises: Error: it is too long. */
  checked(ids: number[]): number[] {
    const most = Math.min(this.card.longest ?? MOST, MOST);
    if (ids.length > most) {
      const has = ids.length.toLocaleString("en-US");
      throw new Error(
        `This page reads up to ${most.toLocaleString("en-US")} tokens; the text has ${has}.`,
      );
    }
    return ids;
  }
}

/** Tokens of a text at most: the weights of a layer of twelve heads then take 50 MB. */
const MOST = 1024;
