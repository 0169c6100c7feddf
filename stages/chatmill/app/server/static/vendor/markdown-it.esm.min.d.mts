/** The part of markdown-it that the chat page uses. */

export interface Token {
  type: string;
  tag: string;
  nesting: -1 | 0 | 1;
  level: number;
  markup: string;
  info: string;
  content: string;
  map: [number, number] | null;
  children: Token[] | null;
  attrGet(name: string): string | null;
}

export interface Delimiters {
  can_open: boolean;
  can_close: boolean;
  length: number;
}

export interface StateInline {
  scanDelims(start: number, canSplitWord: boolean): Delimiters;
}

export default class MarkdownIt {
  constructor(options: { html: boolean; linkify: boolean; typographer: boolean; maxNesting: number });
  inline: { State: new (...given: never[]) => StateInline };
  linkify: { set(options: { fuzzyLink: boolean; fuzzyEmail: boolean }): void };
  validateLink: (url: string) => boolean;
  disable(rules: string[]): this;
  parse(text: string, environment: object): Token[];
}
